"""`make demo`: runs a group on real servers with a crash, a join and a leave, and checks the guarantees.

`make demo-spark` also reads, archives and audits the topic with Spark.
"""

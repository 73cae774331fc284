"""`make demo`: a group on real servers, with a crash, a join and a leave, and a check of the promises.

`make demo-spark` lets Spark read, archive and audit the topic afterwards.
"""

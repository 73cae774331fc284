"""`make demo`: a group on real servers, with a death, an arrival and a departure, and the proof that it held.

`make demo-spark` lets Spark read, archive and audit the topic afterwards.
"""

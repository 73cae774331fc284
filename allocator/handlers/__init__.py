"""Records through a user's handler: order, concurrency, retries, dead letters, and exactly what is done.

In: a source of batches that owns partitions (`RecordSource`), a handler, `ProcessSettings`. Out: calls of the handler,
commits, dead letters, records in retry topics. May touch: the source, these topics, threads and processes for plain
handlers.

`processor` feeds and commits, `partition_worker` has the records of one partition in hand, `window` knows which of them
are done, `lanes` calls the handler, and `policy` decides what follows when a call fails. `retry_topics` sends records
to wait, and `due` holds them until their time.
"""

"""Old groups and clusters: live with them, copy, mirror, cut over, diagnose.

In come an old cluster and a new one, their groups and a plan; out go topics that are filled from others, with a map of
which old offset stands where, offsets moved from group to group, and a service that reads the new cluster. It may
write to the new cluster, to the offsets of the groups that it is told to move, and to the files that it names; of
the old cluster it changes nothing but the offsets of its own group.
"""

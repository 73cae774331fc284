"""Further memberships: Kafka's two group protocols, and the layouts of older libraries.

In: see the packages inside.
Out: their faces.
"""

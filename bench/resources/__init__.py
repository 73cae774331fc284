"""How long a group needs to share out named resources, beside kazoo's SetPartitioner."""

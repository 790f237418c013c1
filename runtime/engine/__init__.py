"""The executor: mesh, collectives, buckets, stages and the list of actions of one rank."""

"""Update rules over bucket shards, and what all of them share: norm, clip, publication."""

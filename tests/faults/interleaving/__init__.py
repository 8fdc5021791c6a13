"""Instances whose statements go in any order, each of which may fail or be the last: what row 30 is played with."""

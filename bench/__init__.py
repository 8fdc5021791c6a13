"""Benchmarks: Oplogue beside the floors of the same run, and beside a peer where node is present.

``python -m bench`` runs all of them, ``--only P3`` one. See README.md beside this file for how to read the figures.
"""

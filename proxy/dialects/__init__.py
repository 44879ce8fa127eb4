"""Wire formats, pure: bytes to the core's words and back. One file per dialect; none knows another.

A dialect forwards what the gateway did not change byte for byte, and gives our errors its own form.
"""

"""One file per change, named m0001_what.py; its revision is its number."""

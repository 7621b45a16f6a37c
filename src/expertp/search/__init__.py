"""Which runs to train next: cells that would decide an open verdict, and constants by coordinate descent."""

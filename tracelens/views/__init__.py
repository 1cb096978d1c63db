"""Frames to something a person or a program reads: terminal, records, HTML, Perfetto. No SQL, no metric arithmetic."""

"""Runs the command line from a checkout: `python cli.py bucket tp8.sqlite`. Not shipped."""

from tracelens.cli import main

main()

"""Tests of the log of the live memory."""

"""Tests of the live memory."""

"""Runs on the Hugging Face hub: `recollect push`, and `recollect build hf://user/name`."""

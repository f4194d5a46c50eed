"""The page of `recollect evaluate --report`."""

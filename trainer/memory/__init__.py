"""The memory of keys and values: its folder, search, inference and tuning."""

"""Presets: the settings of published experiments, one TOML file for each method, with the source of each value."""

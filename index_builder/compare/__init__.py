"""Compare training methods: same data and training budget, same test queries, one report."""

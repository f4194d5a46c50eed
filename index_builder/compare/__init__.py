"""Comparison of methods: train each with the same data and budget, measure each on the same queries, write a report."""

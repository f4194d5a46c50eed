"""The plan of a training: memory and time, estimated before the work begins."""

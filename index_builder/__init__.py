"""The road between: a checkpoint and a memory become a published bundle. It alone knows both ends."""

"""What writes a node's checkpoints outside the training processes?

`main` listens to the ranks, `image_writer` owns one rank's memory, `backup_service` sends and receives backups.
"""

"""Control of a live run from another shell: commands, the endpoint that takes them, its client."""

"""The message bus: NATS connection, subjects, codec, membership, calls, batched requests, server."""

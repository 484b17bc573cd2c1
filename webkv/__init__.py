"""A paged KV-cache runtime for WebGPU whose chats survive a crash."""

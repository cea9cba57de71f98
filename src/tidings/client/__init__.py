"""The public API: connect, publish, subscribe, cache. `import tidings` exports it lazily."""

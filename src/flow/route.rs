//! The dedup routes as the flow uses them: the configuration, the prepared verifier, the counters.

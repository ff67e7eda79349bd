//! What a durable store must survive: restarts, stalls, cuts, poolers, refusals.

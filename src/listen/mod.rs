//! Accept loops and connection limits.

//! The durable store: one suite on both databases, and what each of them must survive besides.

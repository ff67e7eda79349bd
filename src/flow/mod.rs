//! The life of a request, in order.

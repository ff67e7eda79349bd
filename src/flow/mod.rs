//! The life of a request, in order.

mod route;

pub use route::{Match, RouteConflict, RouteTable};

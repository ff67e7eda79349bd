//! Builds every part from a Config, runs both listeners, drains.

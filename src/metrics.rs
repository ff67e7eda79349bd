//! Every metric: name, labels, help.

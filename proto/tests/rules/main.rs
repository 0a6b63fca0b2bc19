//! The rules on a simulated server: scenarios in which every interleaving
//! is written out.

mod scenarios;

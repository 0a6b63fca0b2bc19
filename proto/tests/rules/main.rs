//! The rules on a simulated server: scenarios in which every interleaving
//! is written out, and what each reply leads to for permits.

mod permits;
mod scenarios;

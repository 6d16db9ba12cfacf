//! The engine on loopback, all ranks played by one thread: every run replays from its seed.

mod failing;
mod flight;
mod results;
mod world;

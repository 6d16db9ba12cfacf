//! What a machine looks like (pure model) and how this machine is found out and threads pinned to it (host).

//! A table of a library's functions, each found by its name at run time.

/// Declares a struct of functions, and `resolve`, which finds them all.
macro_rules! symbols {
    ($(#[$doc:meta])* struct $table:ident { $($name:ident: fn($($arg:ty),* $(,)?) -> $ret:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl $table {
            /// Finds every function by `find`, which answers a function's address.
            ///
            /// # Errors
            /// The first name that is not there.
            ///
            /// # Safety
            /// What `find` answers is the address of the function of that name, with the arguments and result that stand
            /// above, and stays valid for as long as the table is used.
            pub(super) unsafe fn resolve(
                find: &dyn Fn(&'static str) -> Option<*const ()>,
            ) -> Result<$table, &'static str> {
                Ok($table {
                    $($name: {
                        let address = find(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: the caller promises that the address is that of a function of this type.
                        unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn($($arg),*) -> $ret>(address) }
                    },)*
                })
            }
        }
    };
}

pub(super) use symbols;

# Compiles the kernel in Rust into a static library.
find_program(OPGATE_RUSTC rustc REQUIRED)
set(counted ${CMAKE_BINARY_DIR}/libcounted.a)
add_custom_command(
  OUTPUT ${counted}
  COMMAND ${OPGATE_RUSTC} --edition 2021 --crate-type staticlib -O -C panic=abort -o ${counted} ${CMAKE_CURRENT_LIST_DIR}/counted.rs
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/counted.rs
  VERBATIM)
add_custom_target(counted_in_rust DEPENDS ${counted})
add_dependencies(opgate_op_dependencies counted_in_rust)
target_link_libraries(opgate_op_dependencies INTERFACE ${counted})

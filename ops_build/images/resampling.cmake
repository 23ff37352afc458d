# Resizing of pictures. The ops that need it include this file.
include_guard(GLOBAL)

add_library(opgate_resampling STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/resampling.cpp)
target_include_directories(opgate_resampling PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
target_link_libraries(opgate_op_dependencies INTERFACE opgate_resampling)

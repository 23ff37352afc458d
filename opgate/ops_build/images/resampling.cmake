# Resizing of pictures. The ops that need it include this file.
include_guard(GLOBAL)

list(APPEND op_sources ${CMAKE_CURRENT_LIST_DIR}/resampling.cpp)

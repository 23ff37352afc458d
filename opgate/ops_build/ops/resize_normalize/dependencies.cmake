include(${CMAKE_CURRENT_LIST_DIR}/../../images/resampling.cmake)

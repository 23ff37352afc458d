include(${CMAKE_CURRENT_LIST_DIR}/../../images/codecs/codecs.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../../images/resampling.cmake)

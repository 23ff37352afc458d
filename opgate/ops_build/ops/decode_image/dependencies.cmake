include(${CMAKE_CURRENT_LIST_DIR}/../../images/codecs/codecs.cmake)

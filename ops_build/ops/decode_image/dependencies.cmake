include(${CMAKE_CURRENT_LIST_DIR}/../../codecs/codecs.cmake)

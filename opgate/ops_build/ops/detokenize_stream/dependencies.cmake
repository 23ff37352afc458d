include(${CMAKE_CURRENT_LIST_DIR}/../../text/text.cmake)

// The types of everything that the API returns, by the names that check.mjs is called with.

import type OpenAI from "openai";

export interface Roots {
  Batch: OpenAI.Batches.Batch;
  ChatCompletion: OpenAI.Chat.ChatCompletion;
  ChatCompletionDeleted: OpenAI.Chat.ChatCompletionDeleted;
  CompactedResponse: OpenAI.Responses.CompactedResponse;
  ContainerCreateResponse: OpenAI.Containers.ContainerCreateResponse;
  ContainerListResponse: OpenAI.Containers.ContainerListResponse;
  ContainerRetrieveResponse: OpenAI.Containers.ContainerRetrieveResponse;
  Conversation: OpenAI.Conversations.Conversation;
  ConversationDeletedResource: OpenAI.Conversations.ConversationDeletedResource;
  ConversationItem: OpenAI.Conversations.ConversationItem;
  ConversationItemList: OpenAI.Conversations.ConversationItemList;
  FileContentResponse: OpenAI.VectorStores.FileContentResponse;
  FileCreateResponse: OpenAI.Containers.FileCreateResponse;
  FileDeleted: OpenAI.Files.FileDeleted;
  FileListResponse: OpenAI.Containers.FileListResponse;
  FileObject: OpenAI.Files.FileObject;
  FileRetrieveResponse: OpenAI.Containers.FileRetrieveResponse;
  InputTokenCountResponse: OpenAI.Responses.InputTokenCountResponse;
  Model: OpenAI.Models.Model;
  Response: OpenAI.Responses.Response;
  ResponseItem: OpenAI.Responses.ResponseItem;
  ResponseItemList: OpenAI.Responses.ResponseItemList;
  ResponseStreamEvent: OpenAI.Responses.ResponseStreamEvent;
  Upload: OpenAI.Uploads.Upload;
  UploadPart: OpenAI.Uploads.UploadPart;
  VectorStore: OpenAI.VectorStores.VectorStore;
  VectorStoreDeleted: OpenAI.VectorStores.VectorStoreDeleted;
  VectorStoreFile: OpenAI.VectorStores.VectorStoreFile;
  VectorStoreFileBatch: OpenAI.VectorStores.VectorStoreFileBatch;
  VectorStoreFileDeleted: OpenAI.VectorStores.VectorStoreFileDeleted;
  VectorStoreSearchResponse: OpenAI.VectorStores.VectorStoreSearchResponse;
}
